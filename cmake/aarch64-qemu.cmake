# Cross compilation for aarch64, run under qemu-user: kernels and storage formats on NEON without such a machine.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
# Boost and Catch2 are headers and come from the host; -idirafter keeps the host's C library behind the target's.
# OAR_TEST_EMULATED: sweeps of the tests are thinned (tests/support/sample.h).
set(CMAKE_CXX_FLAGS_INIT "-idirafter /usr/include -DOAR_TEST_EMULATED")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
