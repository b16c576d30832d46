//go:build tools

// Package jobsets pins controllers that need an older controller-runtime than Kueue; Kubernetes' packages are the same, so
// that they are compiled once.
package jobsets

import (
	_ "sigs.k8s.io/jobset"
	_ "sigs.k8s.io/lws/cmd"
)
