# Install rules: see below for find_package(libshard).
