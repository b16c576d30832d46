// cdi_schema [-bad] FILE...: checks CDI specs by the project's published schema (0.6.0, the version of ours), and reads them
// with containerd's code. -bad: each file must be refused.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/container-orchestrated-devices/container-device-interface/schema"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	bad := flag.Bool("bad", false, "the files are invalid and must be refused")
	flag.Parse()
	failed := flag.NArg() == 0
	for _, path := range flag.Args() {
		err := schema.BuiltinSchema().ValidateFile(path)
		if err == nil {
			_, err = cdi.ReadSpec(path, 0)
		}
		if (err != nil) != *bad {
			fmt.Printf("FAILED: %s: %v\n", path, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
	fmt.Printf("%d specs checked\n", flag.NArg())
}
