name = NVIDIA SimCard 16G
gpus = 2
memory = 16Gi
reserve = 64Mi
context_bytes = 128Mi
