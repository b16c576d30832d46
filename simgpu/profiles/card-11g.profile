name = NVIDIA SimCard 11G
memory = 11Gi
reserve = 64Mi
context_bytes = 128Mi
