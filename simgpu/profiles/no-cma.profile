# vGPU, WSL2: no concurrent managed access.
concurrent_managed_access = 0
