# Run by cpack after the packages are made, which lie in its working folder still: what is in each goes where they will go, as
# PACKAGE.cdx.json.
find_program(python NAMES python3 REQUIRED)
foreach(package ${CPACK_PACKAGE_FILES})
  get_filename_component(name ${package} NAME)
  execute_process(COMMAND ${python} ${CMAKE_CURRENT_LIST_DIR}/../.ci/sbom.py ${package} -o ${CPACK_PACKAGE_DIRECTORY}/${name}.cdx.json
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
