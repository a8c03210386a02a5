// liboar.so is made of the rooms' archives; this file only makes CMake call the linker. The functions of
// oar.h are named to it as roots (CMakeLists.txt), and liboar.map hides everything else.
