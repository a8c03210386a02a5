# One archive that runs from whatever folder it is unpacked in, on a machine that has a C library and, for the plug-in, a
# GPU's driver: bin/oar, lib/ with every shared library it needs (libstdc++ among them), lib/oar/ with the plug-in,
# share/oar/ with the default model. Included by OarPackages.cmake.
#
# The libraries are found by DT_RPATH: DT_RUNPATH, which linkers write unless told otherwise, does not hold for what the
# libraries themselves need.
if(NOT TARGET oar)
  message(FATAL_ERROR "OAR_BUNDLE=ON makes an archive around the program: configure with -DOAR_CLI=ON")
endif()
set_target_properties(oar PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
set_target_properties(oar_shared PROPERTIES INSTALL_RPATH "$ORIGIN")
target_link_options(oar PRIVATE LINKER:--disable-new-dtags)
target_link_options(oar_shared PRIVATE LINKER:--disable-new-dtags)
# Of the C library there can only be one, the machine's.
install(RUNTIME_DEPENDENCY_SET oar_libraries
  PRE_EXCLUDE_REGEXES "^(libc|libm|libdl|librt|libpthread|libresolv)[.]so" "^ld-linux"
  POST_EXCLUDE_REGEXES "/(libc|libm|libdl|librt|libpthread|libresolv)[.]so" "/ld-linux[^/]*$"
  LIBRARY DESTINATION lib COMPONENT bundle EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR TXZ)
set(CPACK_PACKAGING_INSTALL_PREFIX /)
list(REMOVE_ITEM CPACK_COMPONENTS_ALL development)
list(APPEND CPACK_COMPONENTS_ALL bundle)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
string(TOLOWER "oar-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" CPACK_PACKAGE_FILE_NAME)
