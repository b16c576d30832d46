// The node's parts: cards, the plugin's process, kubelet's device manager, and waiting for them.

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

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
