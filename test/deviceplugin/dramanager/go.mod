// The folder's own requirements would be compiled apart: go_program builds it with those of the local cluster's Kubernetes.
module sluice.dev/test/deviceplugin/dramanager

go 1.24.0
