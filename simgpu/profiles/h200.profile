# NVIDIA H200, driver 580: what is built in.
name = NVIDIA H200
memory = 150754820096
