// devicemanager drives kubelet's own device manager (the package of the pinned k8s.io/kubernetes) against the built
// sluice-device-plugin: random pods start, end and restart, kubelet and plugin are restarted and killed, cards become unhealthy.
// At all times no unit is given out twice, every share is on one card, and every container's directory agrees with kubelet.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"
	_ "unsafe" // go:linkname

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

// NewManagerImpl has kubelet's own path compiled in; this is the constructor that it calls.
//
//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(socketPath string, topology []cadvisorapi.Node, store topologymanager.Store) (*devicemanager.ManagerImpl, error)

const (
	gpuPercent = "sluice.dev/gpu-percent"
	cards      = 8
)

var (
	plugin = flag.String("plugin", "", "the built sluice-device-plugin")
	nvml   = flag.String("nvml", "", "the fake NVML library")
	steps  = flag.Int("steps", 10000, "random steps")
	seed   = flag.Int64("seed", 1, "of the random steps")
)

type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

type node struct {
	dir       string
	random    *rand.Rand
	manager   *devicemanager.ManagerImpl
	process   *exec.Cmd
	pods      map[types.UID]*v1.Pod
	agents    map[string]net.Listener // by allocation directory
	unhealthy map[int]bool
	counts    map[string]int
	next      int
}

func (n *node) fail(format string, args ...any) {
	log, _ := os.ReadFile(n.path("plugin.log"))
	if len(log) > 8000 {
		log = log[len(log)-8000:]
	}
	// The plugin's log goes first: the last error alone explains little.
	fmt.Fprintf(os.Stderr, "%s\nFAILED (seed %d): %s\n", log, *seed, fmt.Sprintf(format, args...))
	n.killPlugin()
	os.RemoveAll(n.dir)
	os.Exit(1)
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) must(err error) {
	if err != nil {
		n.fail("%v", err)
	}
}

// await has a generous bound, so that no result depends on time.
func (n *node) await(what string, done func() bool) {
	for end := time.Now().Add(60 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			n.fail("timed out waiting for %s", what)
		}
	}
}

func (n *node) writeCards() {
	var text strings.Builder
	for i := 0; i < cards; i++ {
		flag := ""
		if n.unhealthy[i] {
			flag = "lost"
		}
		fmt.Fprintf(&text, "card GPU-%d %d %d %s\n", i, i, i%2, flag)
	}
	n.must(os.WriteFile(n.path("nvml.new"), []byte(text.String()), 0o644))
	n.must(os.Rename(n.path("nvml.new"), n.path("nvml")))
}

func (n *node) setUp() {
	for _, d := range []string{"kubelet/device-plugins", "kubelet/pods", "src", "dev", "driver"} {
		n.must(os.MkdirAll(n.path(d), 0o755))
	}
	n.must(os.WriteFile(n.path("driver/libcuda.so.1"), []byte("libcuda"), 0o644))
	n.must(os.WriteFile(n.path("src/libsluice.so"), []byte("shim"), 0o644))
	n.must(os.WriteFile(n.path("src/libsluice_engine.so"), []byte("engine"), 0o644))
	config := fmt.Sprintf(`allocDir: %[1]s/alloc
libDir: %[1]s/lib
librarySource: %[1]s/src
cdiDir: %[1]s/cdi
cdiSearchDirs: [%[1]s/cdi]
stateFile: %[1]s/run/plugin.json
sysRoot: %[1]s/sys
driverRoot: %[1]s/driver
deviceRoot: %[1]s/dev
driverAccess: own
logFormat: json
nvmlLibrary: %[2]s
pollMs: 50
preStartWaitMs: 5000
collectSeconds: 1
collectGraceSeconds: 2
`, n.dir, *nvml)
	n.must(os.WriteFile(n.path("config.yaml"), []byte(config), 0o644))
	n.writeCards()
}

func (n *node) startPlugin() {
	log, err := os.OpenFile(n.path("plugin.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	n.must(err)
	defer log.Close()
	n.process = exec.Command(*plugin, "--config", n.path("config.yaml"), "--kubelet-dir", n.path("kubelet/device-plugins"))
	n.process.Env = append(os.Environ(), "SLUICE_FAKE_NVML="+n.path("nvml"))
	n.process.Stdout, n.process.Stderr = log, log
	n.must(n.process.Start())
}

func (n *node) killPlugin() {
	if n.process != nil {
		n.process.Process.Kill()
		n.process.Wait()
		n.process = nil
	}
}

func (n *node) startKubelet() {
	manager, err := newManagerImpl(n.path("kubelet/device-plugins/kubelet.sock"), []cadvisorapi.Node{{Id: 0}, {Id: 1}}, topologymanager.NewFakeManager())
	n.must(err)
	n.manager = manager
	n.must(manager.Start(n.activePods, ready{}, containermap.NewContainerMap(), sets.New[string]()))
}

func (n *node) activePods() []*v1.Pod {
	out := make([]*v1.Pod, 0, len(n.pods))
	for _, pod := range n.pods {
		out = append(out, pod)
	}
	return out
}

func (n *node) awaitDevices() {
	n.await("the node's units", func() bool {
		// Capacity may lack a lost card, which a plugin that started after the loss has never seen.
		_, allocatable, _ := n.manager.GetCapacity()
		healthy := allocatable[gpuPercent]
		return healthy.Value() == int64(cards-len(n.unhealthy))*100
	})
}

// awaitNone waits until kubelet has noticed that the plugin is gone; until then it keeps the old devices.
func (n *node) awaitNone() {
	n.await("kubelet to notice", n.none)
}

func (n *node) none() bool {
	_, allocatable, _ := n.manager.GetCapacity()
	healthy := allocatable[gpuPercent]
	return healthy.Value() == 0
}

// registrations counts over all runs of the plugin.
func (n *node) registrations() int {
	log, err := os.ReadFile(n.path("plugin.log"))
	n.must(err)
	return strings.Count(string(log), `"msg":"registration","result":"ok"`)
}

// settled reports whether the plugin has registered since it last began to serve.
func (n *node) settled() bool {
	log, err := os.ReadFile(n.path("plugin.log"))
	n.must(err)
	text := string(log)
	return strings.LastIndex(text, `"msg":"registration","result":"ok"`) > strings.LastIndex(text, `"msg":"serving"`)
}

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

func (n *node) check() {
	owner := map[string]string{}
	dirs := map[string]string{}
	entries := map[string]entry{}
	for _, e := range n.checkpoint() {
		entries[e.uid+"/"+e.container] = e
	}
	for uid, pod := range n.pods {
		for _, c := range containers(pod) {
			ids := n.held(pod, c.Name)
			if len(ids) != units(c) {
				n.fail("%s/%s holds %d units of %d", pod.Name, c.Name, len(ids), units(c))
			}
			uuids := sets.New[string]()
			for _, id := range ids {
				uuids.Insert(strings.SplitN(id, "::", 2)[0])
				if other, taken := owner[id]; taken && other != pod.Name {
					n.fail("%s is given to %s and to %s", id, other, pod.Name)
				}
				owner[id] = pod.Name
			}
			if uuids.Len() != max(1, units(c)/100) {
				n.fail("%s/%s: %d units on %d cards", pod.Name, c.Name, units(c), uuids.Len())
			}
			e := entries[string(uid)+"/"+c.Name]
			if other := dirs[e.runDir]; other != "" {
				n.fail("one directory for %s and %s/%s", other, pod.Name, c.Name)
			}
			dirs[e.runDir] = pod.Name + "/" + c.Name
			text, err := os.ReadFile(e.runDir + "/allocation.json")
			n.must(err)
			var allocation struct{ Devices []string }
			n.must(json.Unmarshal(text, &allocation))
			sort.Strings(allocation.Devices)
			if strings.Join(allocation.Devices, " ") != strings.Join(ids, " ") {
				n.fail("%s/%s: kubelet has %v, the directory has %v", pod.Name, c.Name, ids, allocation.Devices)
			}
		}
	}
}

func (n *node) step() {
	switch roll := n.random.Intn(1000); {
	case roll < 430:
		n.admit()
	case roll < 800:
		if pod := n.anyPod(); pod != nil {
			n.remove(pod)
		}
	case roll < 960:
		if pod := n.anyPod(); pod != nil {
			all := containers(pod)
			n.start(pod, all[n.random.Intn(len(all))])
			n.counts["container restarts"]++
		}
	case roll < 970:
		n.manager.Stop()
		n.startKubelet()
		n.awaitDevices()
		n.counts["kubelet restarts"]++
	case roll < 980:
		n.killPlugin()
		n.awaitNone()
		if n.random.Intn(3) == 0 {
			n.manager.Stop()
			n.startKubelet()
		}
		n.startPlugin()
		n.awaitDevices()
		n.counts["plugin kills"]++
	case roll < 990:
		// Kubelet has the devices before the plugin logs its registration; that line must not count as the next one.
		n.await("the plugin to log its registration", n.settled)
		before := n.registrations()
		n.must(os.Remove(n.path("kubelet/device-plugins/sluice.sock")))
		// A busy machine may miss the third of a second without devices.
		n.await("the plugin's return", func() bool { return n.none() || n.registrations() > before })
		n.awaitDevices()
		n.counts["socket deletions"]++
	default:
		card := n.random.Intn(cards)
		if n.unhealthy[card] {
			delete(n.unhealthy, card)
		} else if len(n.unhealthy) < 2 {
			n.unhealthy[card] = true
		}
		n.writeCards()
		n.awaitDevices()
		n.counts["changes of card health"]++
	}
}

func main() {
	flag.Parse()
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	klog.SetLogger(logr.Discard())
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	}
	dir, err := os.MkdirTemp("", "sluice-dm-")
	if err != nil {
		panic(err)
	}
	n := &node{dir: dir, random: rand.New(rand.NewSource(*seed)), pods: map[types.UID]*v1.Pod{}, agents: map[string]net.Listener{},
		unhealthy: map[int]bool{}, counts: map[string]int{}}
	n.setUp()
	n.startKubelet()
	n.startPlugin()
	n.awaitDevices()
	began := time.Now()
	for i := 0; i < *steps; i++ {
		n.step()
		if i%20 == 0 {
			n.check()
		}
	}
	n.check()
	// Everything is freed: after the checkpoint of a last pod, all directories but its own are removed.
	for _, pod := range n.activePods() {
		n.remove(pod)
	}
	n.unhealthy = map[int]bool{}
	n.writeCards()
	n.awaitDevices()
	last := n.next
	for n.admit(); len(n.pods) == 0; n.admit() {
	}
	directories := 0
	for _, pod := range n.activePods() {
		directories += len(containers(pod))
	}
	n.await("the directories of ended pods to be removed", func() bool {
		names, _ := os.ReadDir(n.path("alloc"))
		return len(names) == directories
	})
	n.check()
	n.killPlugin()
	os.RemoveAll(n.dir)
	fmt.Printf("%d steps (seed %d) in %.1f s, %d pods tried: %v\n", *steps, *seed, time.Since(began).Seconds(), last, n.counts)
}
