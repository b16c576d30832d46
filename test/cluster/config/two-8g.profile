# Two small cards with the H200's rates: half of one is less than the recorded training holds.
name = NVIDIA SimCard 8G
gpus = 2
memory = 8Gi
reserve = 64Mi
context_bytes = 128Mi
