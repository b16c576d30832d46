# A small card with the H200's rates.
name = NVIDIA SimCard 8G
memory = 8Gi
reserve = 64Mi
context_bytes = 128Mi
