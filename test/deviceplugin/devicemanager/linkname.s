// Lets main.go declare a function without a body (go:linkname).
