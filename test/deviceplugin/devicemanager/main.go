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
	"sort"
	"strings"
	"syscall"
	"time"
	_ "unsafe" // go:linkname

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
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
