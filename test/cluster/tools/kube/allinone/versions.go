//go:build !kube1.30

package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func newKubelet() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }

// As Kubernetes' own main function: messages of kubectl's construction need the verbosity.
func setVerbosity() { _, _ = logs.GlogSetter(cmd.GetLogVerbosity(os.Args)) }
