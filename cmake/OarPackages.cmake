# What is installed, and the Debian packages of it (cpack -G DEB in a build folder):
#   oar        the program, which needs no liboar0       component program
#   liboar0    the shared library, the default model      component library
#   liboar-dev header, liboar.a, pkg-config, CMake        component development
#   oar-cuda   the plug-in for NVIDIA devices             component cuda, where nvcc was found
# Needs of other packages are read off the binaries (dpkg-shlibdeps, of dpkg-dev). The name of the library's package
# carries its soname, so that two ABI versions can be installed side by side. With OAR_BUNDLE (preset cuda; ./dev bundle)
# cpack makes one archive instead: OarBundle.cmake.
include(GNUInstallDirs)
# Debian's papers for each package (component): deploy/debian.
set(deb ${CMAKE_BINARY_DIR}/deb)
file(MAKE_DIRECTORY ${deb})
execute_process(COMMAND gzip -9nc ${CMAKE_SOURCE_DIR}/deploy/debian/changelog OUTPUT_FILE ${deb}/changelog.gz
  COMMAND_ERROR_IS_FATAL ANY)
function(oar_papers package component)
  install(FILES ${CMAKE_SOURCE_DIR}/deploy/debian/copyright ${deb}/changelog.gz DESTINATION share/doc/${package}
    COMPONENT ${component})
endfunction()
oar_papers(liboar${OAR_ABI_VERSION} library)
oar_papers(liboar-dev development)
if(TARGET oar)
  oar_papers(oar program)
  # Manual pages are what --help says.
  find_package(Python3 COMPONENTS Interpreter)
  if(Python3_Interpreter_FOUND AND NOT CMAKE_CROSSCOMPILING AND NOT OAR_SANITIZE)
    add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/man/oar.1.gz
      COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/cmake/man_pages.py $<TARGET_FILE:oar> ${CMAKE_BINARY_DIR}/man ${PROJECT_VERSION}
      DEPENDS oar ${CMAKE_SOURCE_DIR}/cmake/man_pages.py)
    add_custom_target(oar_man ALL DEPENDS ${CMAKE_BINARY_DIR}/man/oar.1.gz)
    install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
  endif()
  install(TARGETS oar RUNTIME_DEPENDENCY_SET oar_libraries RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  if(OAR_SERVER)
    install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/oar.service DESTINATION lib/systemd/system COMPONENT program)
  endif()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME oar)
set(CPACK_PACKAGE_VENDOR "The Oar authors")
# No public address yet, which is what .invalid says (RFC 2606); deploy/debian/changelog has the same.
set(CPACK_PACKAGE_CONTACT "The Oar authors <oar@packages.invalid>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
set(CPACK_COMPONENTS_ALL library development)
if(TARGET oar)
  list(APPEND CPACK_COMPONENTS_ALL program)
endif()
if(TARGET oar_cuda)
  oar_papers(oar-cuda cuda)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME oar)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "ca-certificates")
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "Inference engine and model server\n\
 The oar program: chat, serve over HTTP and gRPC, measure, convert and quantize\n\
 models.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME "liboar${OAR_ABI_VERSION}")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "Inference engine as a shared library\n\
 Language models and tensor graphs behind a C interface; a small default model\n\
 is included.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME liboar-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "liboar${OAR_ABI_VERSION} (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Inference engine: header, static library, pkg-config and CMake packages\n\
 For programs that embed the engine.")
# The CUDA runtime is linked into the plug-in; the driver comes with the machine, as its maker's packages name it.
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME oar-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_CUDA_PACKAGE_ENHANCES "oar, liboar${OAR_ABI_VERSION}")
set(CPACK_COMPONENT_CUDA_DESCRIPTION "Inference engine: plug-in for NVIDIA devices\n\
 For oar --device cuda. Needs the driver of the device.")
# ldconfig learns of the library as of any other, and dpkg-shlibdeps of the package that has it.
file(WRITE ${deb}/triggers "activate-noawait ldconfig\n")
file(WRITE ${deb}/shlibs "liboar ${OAR_ABI_VERSION} liboar${OAR_ABI_VERSION} (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${deb}/triggers ${deb}/shlibs)
set(scripts ${CMAKE_SOURCE_DIR}/deploy/debian)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_CONTROL_EXTRA ${scripts}/postinst ${scripts}/prerm ${scripts}/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
if(OAR_BUNDLE)
  include(OarBundle)
else()
  set(CPACK_POST_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/OarSbom.cmake)
endif()
include(CPack)
