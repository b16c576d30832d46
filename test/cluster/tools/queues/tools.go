//go:build tools

// Package queues pins Kueue and Karpenter, which the tests run beside the local cluster.
package queues

import (
	_ "sigs.k8s.io/karpenter/kwok"
	_ "sigs.k8s.io/kueue/cmd/kueue"
)
