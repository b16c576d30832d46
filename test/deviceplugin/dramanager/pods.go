// The scheduler's part: claims on cards with room, and the pods that use them.

package main

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// share is a claim as the scheduler allocated it.
type share struct {
	object  *resourceapi.ResourceClaim
	card    int
	gib     int
	percent int
	users   int // pods
}

func (n *node) held(card int) (gib, percent int) {
	for _, s := range n.shares {
		if s.card == card {
			gib, percent = gib+s.gib, percent+s.percent
		}
	}
	return gib, percent
}

func quantity(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}

// allocate is the scheduler: a claim on a card with room, or nil.
func (n *node) allocate(gib, percent int) *share {
	card := n.random.Intn(cards)
	heldGiB, heldPercent := n.held(card)
	if n.unhealthy[card] || heldGiB+gib > cardGiB || heldPercent+percent > 100 {
		return nil
	}
	n.next++
	name := fmt.Sprintf("claim-%d", n.next)
	id := types.UID(fmt.Sprintf("share-%d", n.next))
	result := resourceapi.DeviceRequestAllocationResult{
		Request: "gpu", Driver: "sluice.dev", Pool: nodeName, Device: fmt.Sprintf("gpu-%d", card), ShareID: &id,
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": *quantity(fmt.Sprintf("%dGi", gib)), "compute": *quantity(fmt.Sprint(percent)),
		},
	}
	object := &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(fmt.Sprintf("uid-%d", n.next))},
	}
	object.Status.Allocation = &resourceapi.AllocationResult{}
	object.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{result}
	s := &share{object: object, card: card, gib: gib, percent: percent}
	n.shares[name] = s
	return s
}

func podUID(number int) types.UID { return types.UID(fmt.Sprintf("pod-uid-%d", number)) }

func (n *node) pod(shares ...*share) *v1.Pod {
	n.next++
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: fmt.Sprintf("pod-%d", n.next), UID: podUID(n.next),
	}}
	container := v1.Container{Name: "main"}
	for _, s := range shares {
		name := s.object.Name
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: name, ResourceClaimName: &name})
		container.Resources.Claims = append(container.Resources.Claims, v1.ResourceClaim{Name: name})
		s.users++
		s.object.Status.ReservedFor = append(s.object.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		n.api.put(s.object)
	}
	pod.Spec.Containers = []v1.Container{container}
	n.pods[pod.UID] = pod
	n.publish()
	return pod
}

// comingPods are more than can start while kubelet's thread waits for a core.
const comingPods = 2000

// publish tells kubelet which pods are active: others lose their claims, at its start and once a minute. Kubelet reads the
// list first and its claims later. A pod that started in between would lose its claims, too, so that pods to come are in the
// list.
func (n *node) publish() {
	if n.next >= n.comingFrom {
		n.comingFrom = n.next + comingPods
		coming := make([]*v1.Pod, 0, 2*comingPods)
		for i := n.next + 1; i <= n.comingFrom+comingPods; i++ {
			coming = append(coming, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", UID: podUID(i)}})
		}
		n.coming.Store(&coming)
	}
	out := make([]*v1.Pod, 0, len(n.pods))
	for _, pod := range n.pods {
		out = append(out, pod)
	}
	n.active.Store(&out)
}
