//go:build tools

// Package queues pins Kueue, which the tests run beside the local cluster.
package queues

import _ "sigs.k8s.io/kueue/cmd/kueue"
