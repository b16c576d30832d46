name = NVIDIA H200
gpus = 8
memory = 150754820096
