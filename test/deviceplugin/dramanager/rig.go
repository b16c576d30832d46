package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

const nodeName = "node-1"

// api is an API server that knows claims. ResourceSlices are forbidden: the driver serves kubelet without them.
type api struct {
	*httptest.Server
	mutex  sync.Mutex
	claims map[string][]byte
}

func newAPI() *api {
	a := &api{claims: map[string][]byte{}}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mutex.Lock()
		body := a.claims[filepath.Base(r.URL.Path)]
		a.mutex.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/resourceslices"):
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","code":403,"reason":"Forbidden"}`)
		case body == nil:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound"}`)
		default:
			w.Write(body)
		}
	}))
	return a
}

func (a *api) put(claim *resourceapi.ResourceClaim) {
	body, err := json.Marshal(claim)
	if err != nil {
		panic(err)
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.claims[claim.Name] = body
}

func (a *api) remove(name string) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	delete(a.claims, name)
}

// process is the driver.
type process struct{ cmd *exec.Cmd }

func (p *process) end(signal syscall.Signal) {
	if p.cmd == nil {
		return
	}
	p.cmd.Process.Signal(signal)
	p.cmd.Wait()
	p.cmd = nil
}
func (p *process) kill()      { p.end(syscall.SIGKILL) }
func (p *process) terminate() { p.end(syscall.SIGTERM) }

func (n *node) setUp() {
	for _, d := range []string{"kubelet/device-plugins", "kubelet/pods", "kubelet/plugins_registry", "state", "src", "dev", "driver", "alloc"} {
		n.must(os.MkdirAll(n.path(d), 0o755))
	}
	for file, text := range map[string]string{
		"driver/libcuda.so.1": "libcuda", "src/libsluice.so": "shim", "src/libsluice_engine.so": "engine",
		"config.yaml": fmt.Sprintf(`allocDir: %[1]s/alloc
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
recoverSeconds: 0
preStartWaitMs: 5000
`, n.dir, *nvml),
		"kubeconfig": fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {token: t}}]
clusters: [{name: a, cluster: {server: '%s'}}]
`, n.api.URL),
	} {
		n.must(os.WriteFile(n.path(file), []byte(text), 0o644))
	}
	n.writeCards()
	for _, gate := range []string{"ResourceHealthStatus=true"} {
		n.must(utilfeature.DefaultMutableFeatureGate.Set(gate))
	}
}

func (n *node) startDriver() {
	log, err := os.OpenFile(n.path("driver.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	n.must(err)
	defer log.Close()
	cmd := exec.Command(*driver, "--config", n.path("config.yaml"), "--kubelet-dir", n.path("kubelet/device-plugins"),
		"--plugins-dir", n.path("kubelet/plugins"), "--registry-dir", n.path("kubelet/plugins_registry"),
		"--node-name", nodeName, "--kubeconfig", n.path("kubeconfig"))
	cmd.Env = append(os.Environ(), "SLUICE_FAKE_NVML="+n.path("nvml"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	n.must(cmd.Start())
	n.process.cmd = cmd
}

type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

var _ config.SourcesReady = ready{}

// kubelet is its DRA manager and its plugin watcher. The state folder outlives it.
type kubelet struct {
	dra  *dra.Manager
	stop func()
}

func (n *node) restartKubelet() {
	if n.kubelet != nil {
		n.kubelet.stop()
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: n.api.URL, QPS: 1e6, Burst: 1e6})
	n.must(err)
	manager, err := dra.NewManager(klog.Background(), client, n.path("state"))
	n.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	// Its parameters differ between versions of Kubernetes.
	object := reflect.ValueOf(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	kind := reflect.TypeFor[dra.GetNodeFunc]()
	getNode := reflect.MakeFunc(kind, func([]reflect.Value) []reflect.Value {
		return []reflect.Value{object, reflect.Zero(kind.Out(1))}
	}).Interface().(dra.GetNodeFunc)
	n.must(manager.Start(ctx, func() []*v1.Pod { return slices.Concat(*n.coming.Load(), *n.active.Load()) }, getNode, ready{}))
	watcher := pluginmanager.NewPluginManager(n.path("kubelet/plugins_registry"), &record.FakeRecorder{})
	watcher.AddHandler(registerapi.DRAPlugin, manager.GetWatcherHandler())
	switch w := any(watcher).(type) {
	case interface {
		Run(config.SourcesReady, <-chan struct{})
	}:
		go w.Run(ready{}, stopped)
	case interface {
		Run(context.Context, config.SourcesReady, <-chan struct{})
	}:
		go w.Run(ctx, ready{}, stopped)
	default:
		n.must(errors.New("the plugin manager's Run has an unknown form"))
	}
	n.kubelet = &kubelet{dra: manager, stop: func() {
		cancel()
		close(stopped)
	}}
}

// health is the entry about one claim that kubelet writes into the pod's status.
func (k *kubelet) health(pod *v1.Pod, claim string) v1.ResourceHealthStatus {
	status := v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "main"}}}
	switch m := any(k.dra).(type) {
	case interface {
		UpdateAllocatedResourcesStatus(*v1.Pod, *v1.PodStatus)
	}:
		m.UpdateAllocatedResourcesStatus(pod, &status)
	case interface {
		UpdateAllocatedResourcesStatus(klog.Logger, *v1.Pod, *v1.PodStatus)
	}:
		m.UpdateAllocatedResourcesStatus(klog.Background(), pod, &status)
	}
	for _, resource := range status.ContainerStatuses[0].AllocatedResourcesStatus {
		if string(resource.Name) == "claim:"+claim && len(resource.Resources) > 0 {
			return resource.Resources[0].Health
		}
	}
	return ""
}

// serveAgents stands in for the node agent: a socket in each allocation's folder.
func serveAgents(root string) {
	agents := map[string]net.Listener{}
	for ; ; time.Sleep(time.Millisecond) {
		entries, _ := os.ReadDir(root)
		there := map[string]bool{}
		for _, entry := range entries {
			dir := filepath.Join(root, entry.Name())
			there[dir] = true
			if _, err := os.Stat(filepath.Join(dir, "allocation.json")); err != nil || agents[dir] != nil {
				continue
			}
			// Its own type of socket is the real agent's.
			if l, err := net.Listen("unixpacket", filepath.Join(dir, "agent.sock")); err == nil {
				agents[dir] = l
			}
		}
		for dir, listener := range agents {
			if !there[dir] {
				listener.Close()
				delete(agents, dir)
			}
		}
	}
}
