# The H200 under driver 535.
driver = 535
