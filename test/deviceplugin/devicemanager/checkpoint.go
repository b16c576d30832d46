package main

import (
	"encoding/base64"
	"encoding/json"
	"os"

	"google.golang.org/protobuf/proto"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// entry is one container of kubelet's checkpoint, as far as the checks need it.
type entry struct {
	uid, container, runDir string
}

func (n *node) checkpoint() []entry {
	text, err := os.ReadFile(n.path("kubelet/device-plugins/kubelet_internal_checkpoint"))
	if os.IsNotExist(err) {
		return nil
	}
	n.must(err)
	var file struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName, AllocResp string
			}
		}
	}
	n.must(json.Unmarshal(text, &file))
	var out []entry
	for _, e := range file.Data.PodDeviceEntries {
		bytes, err := base64.StdEncoding.DecodeString(e.AllocResp)
		n.must(err)
		var response pluginapi.ContainerAllocateResponse
		n.must(proto.Unmarshal(bytes, &response))
		one := entry{uid: e.PodUID, container: e.ContainerName}
		for _, mount := range response.Mounts {
			if mount.ContainerPath == "/opt/sluice/run" {
				one.runDir = mount.HostPath
			}
		}
		out = append(out, one)
	}
	return out
}
