// One program that is containerd and ctr, by the name it is called with. Its shim stays apart: both would start the other's
// plug-ins, and there is a shim for every pod.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	"github.com/containerd/containerd/v2/cmd/containerd/command"
	ctr "github.com/containerd/containerd/v2/cmd/ctr/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	run := command.App().Run
	switch name {
	case "containerd":
	case "ctr":
		run = ctr.New().Run
	default:
		fmt.Fprintf(os.Stderr, "called as %q; accepted names: containerd, ctr\n", os.Args[0])
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}
