# How a room is built: one static library with warnings as errors, hidden symbols and private dependencies.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# -O2 everywhere; the ISA-specific kernel files ask for -O3 themselves. NDEBUG stays off in our own checks:
# OAR_CHECK is not assert().
# Functions lie in sections of their own, so that the library and the programs leave out what nothing of theirs reaches.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG -ffunction-sections -fdata-sections")
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")
if(CMAKE_BUILD_TYPE STREQUAL Release)
  add_link_options(LINKER:--gc-sections)
  # Templates leave many functions of equal code. A linker that can joins those whose address nobody compares ("safe"):
  # 3 % of the library and of the program. With -O2 it lays texts that end others into them. GNU ld, which cannot join, is
  # used where gold is missing.
  include(CheckLinkerFlag)
  check_linker_flag(CXX "-fuse-ld=gold;LINKER:--icf=safe" OAR_LINKER_JOINS_EQUAL_CODE)
  if(OAR_LINKER_JOINS_EQUAL_CODE)
    add_link_options(-fuse-ld=gold LINKER:--icf=safe LINKER:-O2)
  endif()
endif()
# -Og keeps a sanitizer build fast enough to run the whole suite on two cores.
set(CMAKE_CXX_FLAGS_DEBUG "-Og -g1")
set(CMAKE_C_FLAGS_DEBUG "-Og -g1")

# Bits must not depend on which multiply and add the compiler joins. x86-64's base set has no fused multiply-add; the files
# that may use one on x86 say the same for themselves.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_compile_options(-ffp-contract=off)
endif()

find_package(Threads REQUIRED)
find_program(OAR_CCACHE ccache)
if(OAR_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${OAR_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${OAR_CCACHE})
endif()

if(OAR_SANITIZE)
  # Null pointers fault by themselves and AddressSanitizer reports them, as it does what a pointer that wrapped around would
  # reach; UBSan's own checks of each dereference and sum are a fifth of a sanitizer build's time. So is alignment, another
  # fifth; processors of today do not ask for it, and the fuzzed readers, where bytes of files become numbers, keep it.
  set(unchecked null,vptr,object-size,pointer-overflow,nonnull-attribute,returns-nonnull-attribute)
  if(NOT OAR_FUZZ)
    string(APPEND unchecked ",alignment")
  endif()
  add_compile_options(-fsanitize=${OAR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    -fno-sanitize=${unchecked})
  add_link_options(-fsanitize=${OAR_SANITIZE})
endif()
if(OAR_SANITIZE MATCHES "thread")
  # ThreadSanitizer knows no fences; Asio's only add to what its mutexes already order. One definition for all who use Asio.
  add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK=1)
endif()
if(OAR_FUZZ)  # coverage of every room, without which libFuzzer gropes in the dark
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Presets release, dev, tsan and embed compile several files of a room as one, which takes a third less time and makes the
# library a tenth smaller. Presets fuzz and cuda compile file by file and prove that each stands by itself.
#
# Two files cannot share a compilation where each has its own local `infer`, say. Better names help; where both names are
# right, one of the two goes elsewhere:
#   oar_together(BATCH FILES...)  a compilation of just these files; named before their room
#   oar_alone(FILES...)           compiled alone, for reasons of its own
# A compilation alone costs two to eight seconds, most of them in headers: seven routes of server/http took 45 s, and take
# 13 as one. The price is that a changed file takes its batch along; -DCMAKE_UNITY_BUILD=OFF is for who edits one for long.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
function(oar_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
function(oar_together batch)
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${batch})
endfunction()

# Puts the other files of a target into batches where some are in one by oar_together(); CMake has either kind, not both.
function(oar_batch_rest target)
  get_target_property(sources ${target} SOURCES)
  set(rest "")
  set(named OFF)
  list(FILTER sources EXCLUDE REGEX "^\\$<")  # objects made elsewhere
  foreach(source ${sources})
    get_source_file_property(batch ${source} UNITY_GROUP)
    if(batch AND NOT batch MATCHES "^rest_")
      set(named ON)
    else()
      list(APPEND rest ${source})
    endif()
  endforeach()
  if(NOT named)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  set(count 0)
  foreach(source ${rest})
    math(EXPR batch "${count} / ${CMAKE_UNITY_BUILD_BATCH_SIZE}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP rest_${batch})
    math(EXPR count "${count} + 1")
  endforeach()
endfunction()

add_library(oar_flags INTERFACE)
target_include_directories(oar_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
set(warnings -Wall -Wextra -Werror -Wno-missing-field-initializers)
string(REPLACE ";" "," warnings_of_nvcc_host "${warnings}")
target_compile_options(oar_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:${warnings}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings -Xcompiler=${warnings_of_nvcc_host}>")
target_link_libraries(oar_flags INTERFACE Threads::Threads)

# Boost is used header-only, and only Boost.JSON in the engine, Asio and Beast in server/http. Debian and Ubuntu
# both keep it in the default include path, so no imported target is needed; the version is what matters.
find_package(Boost 1.81 REQUIRED)
add_library(oar_boost INTERFACE)
target_include_directories(oar_boost SYSTEM INTERFACE ${Boost_INCLUDE_DIRS})

# oar_room(NAME SOURCES... [DEPS targets...]) makes the static library oar_NAME.
function(oar_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(oar_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(oar_${name} PUBLIC oar_flags ${ARG_DEPS})
  oar_batch_rest(oar_${name})
endfunction()

# oar_small(NAME FILES...) compiles files of a room for size: what runs once a model or a request, and no inner loop. A part
# of its own, since a file with options of its own could not share a compilation with others.
function(oar_small name)
  get_target_property(sources oar_${name} SOURCES)
  list(REMOVE_ITEM sources ${ARGN})
  add_library(oar_${name}_small OBJECT ${ARGN})
  target_link_libraries(oar_${name}_small PRIVATE oar_flags)
  target_compile_definitions(oar_${name}_small PRIVATE $<TARGET_PROPERTY:oar_${name},COMPILE_DEFINITIONS>)
  target_compile_options(oar_${name}_small PRIVATE $<$<CONFIG:Release>:-Os>)
  set_property(TARGET oar_${name} PROPERTY SOURCES ${sources})
  oar_batch_rest(oar_${name})
  oar_batch_rest(oar_${name}_small)
  set_property(TARGET oar_${name} APPEND PROPERTY SOURCES $<TARGET_OBJECTS:oar_${name}_small>)
endfunction()

# oar_whole_small(TARGET...) does so with all of a target.
function(oar_whole_small)
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-Os>)
  endforeach()
endfunction()

# oar_registry(KIND NAMES...) writes generated/oar_KIND.inc with one OAR_REGISTER(name) line per entry: the one
# list that a new op, model or format adds its line to. Greppable, no static-initializer games.
function(oar_registry kind)
  set(lines "// Generated by CMake from the ${kind} list; edit that list, not this file.\n")
  foreach(name ${ARGN})
    string(APPEND lines "OAR_REGISTER(${name})\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/oar_${kind}.inc CONTENT "${lines}" @ONLY)
endfunction()
