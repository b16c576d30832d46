# The H200 under driver 550.
driver = 550
