// Calls of kubelet's DRA manager for a pod: preparation, its repetition, and the end.

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// reaching repeats a call, as kubelet's pod workers do, while the plugin watcher replaces the connection to a driver that
// was restarted: it closes the old one up to seconds later. Any other error is the driver's. It says whether a call failed.
func (n *node) reaching(call func() error) (failed bool) {
	n.await("kubelet's connection", func() error {
		err := call()
		if err == nil {
			return nil
		}
		failed = true
		for _, passing := range []string{"client connection is closing", "not registered", "is not usable", "connection error", "error reading from server"} {
			if strings.Contains(err.Error(), passing) {
				n.counts["reconnects"]++
				return err
			}
		}
		n.fail("%v", err)
		return nil
	})
	return failed
}

func (n *node) prepare(pod *v1.Pod) {
	n.reaching(func() error { return n.kubelet.dra.PrepareResources(context.Background(), pod) })
	info, err := n.kubelet.dra.GetResources(pod, &pod.Spec.Containers[0])
	n.must(err)
	var names []string
	for _, device := range info.CDIDevices {
		names = append(names, device.Name)
	}
	for _, claim := range pod.Spec.ResourceClaims {
		s := n.shares[claim.Name]
		for _, want := range []string{"sluice.dev/claim=" + string(s.object.UID), fmt.Sprintf("sluice.dev/gpu=GPU-%d", s.card)} {
			if !slices.Contains(names, want) {
				n.fail("%s: CDI names %v lack %s", pod.Name, names, want)
			}
		}
	}
}

func (n *node) end(pod *v1.Pod) {
	failed := n.reaching(func() error { return n.kubelet.dra.UnprepareResources(context.Background(), pod) })
	n.ended(pod, failed)
}

// ended updates the model. Where a call failed, kubelet's next one takes a claim from the other pods that use it: it has
// dropped this pod's reference at the first call, and then counts the last other one as this pod's
// (unprepareResources, Kubernetes 1.34 to 1.37). Those pods are then prepared anew, as a restart of kubelet does it.
func (n *node) ended(pod *v1.Pod, failed bool) {
	delete(n.pods, pod.UID)
	n.publish()
	for _, claim := range pod.Spec.ResourceClaims {
		s := n.shares[claim.Name]
		s.object.Status.ReservedFor = slices.DeleteFunc(s.object.Status.ReservedFor,
			func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.UID })
		n.api.put(s.object)
		if s.users--; s.users == 0 {
			n.api.remove(claim.Name)
			delete(n.shares, claim.Name)
		} else if failed {
			n.counts["lost"]++
			n.prepareUsers(claim.Name)
		}
	}
}

func (n *node) prepareUsers(claim string) {
	for _, pod := range n.pods {
		if slices.ContainsFunc(pod.Spec.ResourceClaims, func(c v1.PodResourceClaim) bool { return c.Name == claim }) {
			n.prepare(pod)
		}
	}
}

// reached waits until kubelet has found the driver, by a claim of its own.
func (n *node) reached() {
	s := n.allocate(1, 1)
	for ; s == nil; s = n.allocate(1, 1) {
		if len(n.pods) > 0 && n.random.Intn(cards) == 0 {
			n.endAny() // all cards may be full
		}
	}
	pod := n.pod(s)
	n.await("kubelet to reach the driver", func() error {
		return n.kubelet.dra.PrepareResources(context.Background(), pod)
	})
	n.end(pod)
}

func (n *node) any() *v1.Pod {
	var all []types.UID
	for uid := range n.pods {
		all = append(all, uid)
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all) // the same steps for one seed
	return n.pods[all[n.random.Intn(len(all))]]
}

// endAny waits until kubelet reaches the driver.
func (n *node) endAny() {
	pod, failed := n.any(), false
	n.await("a pod's end", func() error {
		err := n.kubelet.dra.UnprepareResources(context.Background(), pod)
		failed = failed || err != nil
		return err
	})
	n.ended(pod, failed)
}
