//go:build tools

// Package kube pins Kubernetes and the programs that share its packages. Small programs that drive these packages belong
// below this folder: they share the pin and the compiled packages.
package kube

import _ "helm.sh/helm/v3/cmd/helm"
