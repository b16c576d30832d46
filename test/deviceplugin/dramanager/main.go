// dramanager drives kubelet's own DRA manager and plugin watcher (packages of the pinned k8s.io/kubernetes) against the
// built sluice-dra-driver: random pods with claims start, end and restart, claims are shared, kubelet and driver are
// restarted and killed, the node reboots, cards become unhealthy. At all times no byte and no percent of a card is given
// out twice, and the driver's folders are those of the claims that kubelet holds.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

const (
	cards   = 8
	cardGiB = 80
)

var (
	driver = flag.String("driver", "", "the built sluice-dra-driver")
	nvml   = flag.String("nvml", "", "the fake NVML library")
	steps  = flag.Int("steps", 10000, "random steps")
	seed   = flag.Int64("seed", 1, "of the random steps")
)

type node struct {
	dir       string
	random    *rand.Rand
	api       *api
	kubelet   *kubelet
	process   *process
	pods      map[types.UID]*v1.Pod
	active    atomic.Pointer[[]*v1.Pod] // the same, for kubelet's own thread
	coming    atomic.Pointer[[]*v1.Pod] // pods that have not started; see publish
	shares    map[string]*share         // by the claim's name
	unhealthy map[int]bool
	counts    map[string]int
	next      int
	// The list of pods to come is made anew when this number is reached.
	comingFrom int
}

func (n *node) fail(format string, args ...any) {
	log, _ := os.ReadFile(n.path("driver.log"))
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	if len(lines) > 30 {
		lines = lines[len(lines)-30:]
	}
	// The reason is one line, and the last one, so that the end of a long log shows it.
	reason := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	n.process.kill()
	os.RemoveAll(n.dir)
	fmt.Fprintf(os.Stderr, "the driver's last lines:\n%s\ncounts so far: %v\nFAILED (seed %d, step %d): %s\n",
		strings.Join(lines, "\n"), n.counts, *seed, n.counts["steps"], reason)
	os.Exit(1)
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) must(err error) {
	if err != nil {
		n.fail("%v", err)
	}
}

// await has a generous bound, so that no result depends on time.
func (n *node) await(what string, done func() error) {
	var err error
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if err = done(); err == nil {
			return
		}
		if time.Now().After(end) {
			n.fail("timed out waiting for %s: %v", what, err)
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

// without lists the elements of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

// check compares the driver's files with the model.
func (n *node) check() {
	entries, err := os.ReadDir(n.path("alloc"))
	n.must(err)
	var have, want []string
	gib, percent := map[string]uint64{}, map[string]uint64{}
	for _, entry := range entries {
		have = append(have, entry.Name())
		text, err := os.ReadFile(n.path("alloc/" + entry.Name() + "/allocation.json"))
		n.must(err)
		var file struct {
			Claim struct {
				Devices []struct {
					UUID            string
					Memory, Compute uint64
				}
			}
		}
		n.must(json.Unmarshal(text, &file))
		for _, device := range file.Claim.Devices {
			gib[device.UUID] += device.Memory >> 30
			percent[device.UUID] += device.Compute
		}
	}
	for _, s := range n.shares {
		want = append(want, "claim-"+string(s.object.UID))
	}
	sort.Strings(want)
	if !slices.Equal(have, want) {
		n.fail("folders without a claim: %v; claims without a folder: %v", without(have, want), without(want, have))
	}
	for uuid := range gib {
		if gib[uuid] > cardGiB || percent[uuid] > 100 {
			n.fail("%s: %d GiB and %d percent are given out", uuid, gib[uuid], percent[uuid])
		}
	}
}

// health compares kubelet's report of a pod's devices with the cards.
func (n *node) health() {
	for _, pod := range n.pods {
		for _, claim := range pod.Spec.ResourceClaims {
			want := v1.ResourceHealthStatusHealthy
			if n.unhealthy[n.shares[claim.Name].card] {
				want = v1.ResourceHealthStatusUnhealthy
			}
			n.await(fmt.Sprintf("%s's health %s", pod.Name, want), func() error {
				if have := n.kubelet.health(pod, claim.Name); have != want {
					return fmt.Errorf("%s is %q", claim.Name, have)
				}
				return nil
			})
		}
	}
	n.counts["health"]++
}

// heal waits for the driver, whose slice the scheduler would see. It comes before a restart: a driver that starts after a card was lost has never seen it.
func (n *node) heal() {
	clear(n.unhealthy)
	n.writeCards()
	n.await("the driver to see the cards", func() error {
		text, err := os.ReadFile(n.path("run/plugin.json"))
		if healthy := strings.Count(string(text), `"state": "healthy"`); err == nil && healthy != cards {
			return fmt.Errorf("%d are healthy", healthy)
		}
		return err
	})
}

func (n *node) startPod() {
	var shares []*share
	if other := n.any(); other != nil && n.random.Intn(4) == 0 { // a claim that another pod uses
		shares = append(shares, n.shares[other.Spec.ResourceClaims[0].Name])
		n.counts["shared"]++
	}
	for i := 0; i <= n.random.Intn(2); i++ {
		if s := n.allocate(1+n.random.Intn(30), 1+n.random.Intn(30)); s != nil {
			shares = append(shares, s)
		}
	}
	if len(shares) > 0 {
		n.prepare(n.pod(shares...))
		n.counts["pods"]++
	}
}

func (n *node) step() {
	n.counts["steps"]++
	switch act := n.random.Intn(1000); {
	case act < 500 || len(n.pods) == 0:
		n.startPod()
	case act < 850:
		n.end(n.any())
	case act < 990: // a container's restart, or kubelet's sync
		n.prepare(n.any())
		n.counts["again"]++
	case act < 993:
		n.unhealthy[n.random.Intn(cards)] = true
		n.writeCards()
		n.health()
	case act < 996:
		n.heal()
		n.health()
	case act < 997:
		n.heal()
		n.process.kill()
		n.startDriver()
		n.reached()
		n.counts["kills"]++
	case act < 998:
		n.heal()
		n.process.terminate()
		n.startDriver()
		n.reached()
		n.counts["restarts"]++
	case act < 999:
		n.heal()
		n.restartKubelet()
		n.reached()
		for _, pod := range n.pods { // kubelet asks for all claims again
			n.prepare(pod)
		}
		n.counts["kubelets"]++
	default: // reboot: no process, no specs; all containers start anew
		n.heal()
		n.process.kill()
		n.must(os.RemoveAll(n.path("cdi")))
		n.restartKubelet()
		n.startDriver()
		n.reached()
		for _, pod := range n.pods {
			n.prepare(pod)
		}
		n.counts["reboots"]++
	}
	n.check()
}

func main() {
	flag.Parse()
	// Kubelet's own messages would hide a failure. klog writes errors to stderr, whatever its output is.
	klogFlags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(klogFlags)
	klogFlags.Parse([]string{"-logtostderr=false", "-stderrthreshold=FATAL"})
	klog.SetOutput(io.Discard)
	dir, err := os.MkdirTemp("", "dram")
	if err != nil {
		panic(err)
	}
	n := &node{
		dir: dir, random: rand.New(rand.NewSource(*seed)), pods: map[types.UID]*v1.Pod{}, shares: map[string]*share{},
		unhealthy: map[int]bool{}, counts: map[string]int{}, api: newAPI(), process: &process{},
	}
	defer os.RemoveAll(dir)
	n.setUp()
	n.publish()
	go serveAgents(n.path("alloc"))
	n.startDriver()
	n.restartKubelet()
	n.reached()
	for i := 0; i < *steps; i++ {
		n.step()
	}
	for len(n.pods) > 0 {
		n.end(n.any())
	}
	n.check()
	n.process.terminate()
	delete(n.counts, "steps")
	fmt.Println("ok:", *steps, "steps", n.counts)
}
