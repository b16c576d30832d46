// Pods as kubelet treats them: admission, starts of containers, deletion.

package main

import (
	"fmt"
	"net"
	"os"
	"slices"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

func (n *node) container(name string, units int) v1.Container {
	quantity := *resource.NewQuantity(int64(units), resource.DecimalSI)
	return v1.Container{Name: name, Resources: v1.ResourceRequirements{Limits: v1.ResourceList{gpuPercent: quantity}}}
}

func units(c *v1.Container) int {
	q := c.Resources.Limits[gpuPercent]
	return int(q.Value())
}

func (n *node) randomUnits() int {
	switch n.random.Intn(10) {
	case 0:
		return 100
	case 1:
		return 200
	default:
		return 1 + n.random.Intn(60)
	}
}

// held returns the units of a container, sorted.
func (n *node) held(pod *v1.Pod, name string) []string {
	var out []string
	for _, instances := range n.manager.GetDevices(string(pod.UID), name) {
		for id := range instances {
			out = append(out, id)
		}
	}
	sort.Strings(out)
	return out
}

// fits reports whether the free units can serve a pod's first container.
func (n *node) fits(want int) bool {
	free := make([]int, cards)
	for i := range free {
		if !n.unhealthy[i] {
			free[i] = 100
		}
	}
	used := sets.New[string]()
	for _, pod := range n.pods {
		for _, c := range containers(pod) {
			used.Insert(n.held(pod, c.Name)...)
		}
	}
	for id := range used {
		var card, unit int
		fmt.Sscanf(id, "GPU-%d::%d", &card, &unit)
		if !n.unhealthy[card] {
			free[card]--
		}
	}
	whole, largest := 0, 0
	for _, f := range free {
		largest = max(largest, f)
		if f == 100 {
			whole++
		}
	}
	if want <= 100 {
		return largest >= want
	}
	return whole >= want/100
}

func containers(pod *v1.Pod) []*v1.Container {
	var out []*v1.Container
	for i := range pod.Spec.InitContainers {
		out = append(out, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}

func (n *node) admit() {
	n.next++
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", n.next), UID: types.UID(fmt.Sprintf("uid-%d", n.next))}}
	if n.random.Intn(4) == 0 {
		init := n.container("init", 1+n.random.Intn(40))
		if n.random.Intn(2) == 0 {
			always := v1.ContainerRestartPolicyAlways
			init.RestartPolicy = &always // a sidecar
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, init)
	}
	for i := 0; i <= n.random.Intn(5)/4; i++ {
		pod.Spec.Containers = append(pod.Spec.Containers, n.container(fmt.Sprintf("main%d", i), n.randomUnits()))
	}
	all := containers(pod)
	fits := n.fits(units(all[0]))
	// Kubelet knows a pod before it admits it; a refused pod is no longer active.
	n.pods[pod.UID] = pod
	for i, c := range all {
		if err := n.manager.Allocate(pod, c); err != nil {
			if i == 0 && fits {
				n.fail("%d units fit on a card but were refused: %v", units(c), err)
			}
			// Kubelet's messages if too few units are free, or if the plugin was just killed and has not registered again.
			reasons := []string{"sluice refuses: ", "requested number of devices unavailable", "no healthy devices present", "cannot allocate unregistered device"}
			if !slices.ContainsFunc(reasons, func(reason string) bool { return strings.Contains(err.Error(), reason) }) {
				n.fail("a refusal without a reason: %v", err)
			}
			n.counts["refused"]++
			delete(n.pods, pod.UID)
			return
		}
		if i == 0 && !fits {
			n.fail("%d units of %s fit on no card but were allocated", units(c), pod.Name)
		}
	}
	n.counts["admitted"]++
	n.must(os.MkdirAll(n.path("kubelet/pods/"+string(pod.UID)), 0o755))
	for _, c := range all {
		n.start(pod, c)
	}
}

// start does kubelet's part before each start of a container, restarts included.
func (n *node) start(pod *v1.Pod, c *v1.Container) {
	// PreStartContainer checks every container with these devices, init containers included.
	for _, each := range containers(pod) {
		n.agent(pod, each)
	}
	options, err := n.manager.GetDeviceRunContainerOptions(pod, c)
	if err != nil {
		n.fail("start of %s/%s: %v", pod.Name, c.Name, err)
	}
	env := map[string]string{}
	for _, e := range options.Envs {
		env[e.Name] = e.Value
	}
	if env["LD_PRELOAD"] != "/opt/sluice/lib/libsluice.so" {
		n.fail("%s/%s starts without the hook: %v", pod.Name, c.Name, env)
	}
	want := max(1, units(c)/100)
	if len(options.Mounts) != 2 || len(options.CDIDevices) != want {
		n.fail("%s/%s: %d mounts, %d CDI names", pod.Name, c.Name, len(options.Mounts), len(options.CDIDevices))
	}
}

// runDir is the allocation's directory from kubelet's checkpoint.
func (n *node) runDir(pod *v1.Pod, c *v1.Container) string {
	for _, entry := range n.checkpoint() {
		if entry.uid == string(pod.UID) && entry.container == c.Name {
			return entry.runDir
		}
	}
	n.fail("%s/%s is not in kubelet's checkpoint", pod.Name, c.Name)
	return ""
}

func (n *node) agent(pod *v1.Pod, c *v1.Container) {
	dir := n.runDir(pod, c)
	if n.agents[dir] != nil {
		return
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: dir + "/agent.sock", Net: "unixpacket"})
	if err != nil {
		n.fail("the directory of %s/%s: %v", pod.Name, c.Name, err)
	}
	listener.SetUnlinkOnClose(false)
	n.agents[dir] = listener
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			connection.Close()
		}
	}()
}

func (n *node) remove(pod *v1.Pod) {
	for _, c := range containers(pod) {
		dir := n.runDir(pod, c)
		if l := n.agents[dir]; l != nil {
			l.Close()
			delete(n.agents, dir)
		}
	}
	delete(n.pods, pod.UID)
	n.must(os.RemoveAll(n.path("kubelet/pods/" + string(pod.UID))))
	n.counts["deleted"]++
}

func (n *node) anyPod() *v1.Pod {
	if len(n.pods) == 0 {
		return nil
	}
	uids := make([]string, 0, len(n.pods))
	for uid := range n.pods {
		uids = append(uids, string(uid))
	}
	sort.Strings(uids) // so that each run of a seed takes the same steps
	return n.pods[types.UID(uids[n.random.Intn(len(uids))])]
}
