# cmake -D NM=... -D LIBRARY=liboar_kernels.a -D SOURCES="cpu/a_avx2.cc;..." -P check_isa_objects.cmake
# Fails when an object of LIBRARY made of one of SOURCES could bring its instruction set to a processor without it:
#   - a weak symbol outside the file's own namespace (oar::avx2::... for *_avx2.cc): the linker keeps one copy of an
#     inline function, and that copy may be this one;
#   - a dynamic initializer: it runs before anybody has asked which processor this is.
cmake_minimum_required(VERSION 3.22)

execute_process(COMMAND ${NM} -A -C ${LIBRARY} OUTPUT_VARIABLE symbols RESULT_VARIABLE status)
if(status)
  message(FATAL_ERROR "${NM} cannot read ${LIBRARY}")
endif()
set(names "")
foreach(source ${SOURCES})
  get_filename_component(name ${source} NAME)
  string(REPLACE "." "\\." name "${name}")
  list(APPEND names "${name}")
endforeach()
string(REPLACE ";" "|" names "${names}")

# A line: liboar_kernels.a:matmul_avx2.cc.o:0000000000000000 W oar::f(int)
string(REGEX REPLACE "[][;]" "_" symbols "${symbols}")  # CMake's own list characters
string(REPLACE "\n" ";" symbols "${symbols}")
set(checked "")
set(wrong "")
foreach(line ${symbols})
  if(NOT line MATCHES ":(${names})\\.o(bj)?: *[0-9a-f]* ([A-Za-z]) (.*)$")
    continue()
  endif()
  set(file ${CMAKE_MATCH_1})
  set(kind ${CMAKE_MATCH_3})
  set(symbol "${CMAKE_MATCH_4}")
  list(APPEND checked ${file})
  string(REGEX REPLACE "^.*_([a-z0-9]+)\\.cc$" "\\1" level ${file})
  if(kind MATCHES "[WVu]" AND NOT symbol MATCHES "(^|[ ])oar::([a-z]+_)?${level}::" AND
     NOT symbol MATCHES "^(guard variable|typeinfo|vtable) for oar::([a-z]+_)?${level}::")
    list(APPEND wrong "${file}: weak symbol outside its namespace: ${symbol}")
  elseif(symbol MATCHES "_GLOBAL__sub_I|__static_initialization_and_destruction|__cxx_global_var_init")
    list(APPEND wrong "${file}: dynamic initializer: ${symbol}")
  endif()
endforeach()
list(REMOVE_DUPLICATES checked)
list(LENGTH checked count)
list(LENGTH SOURCES expected)
if(NOT count EQUAL expected)
  message(FATAL_ERROR "${LIBRARY} has ${count} of the ${expected} objects compiled for an instruction set")
endif()
if(wrong)
  string(REPLACE ";" "\n  " wrong "${wrong}")
  message(FATAL_ERROR "Objects compiled for an instruction set may hold kernels and constant tables alone "
                      "(kernels/kernel_list.h):\n  ${wrong}")
endif()
