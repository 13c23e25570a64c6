# `cmake --install` and the Debian packages: isthmus (command line and emulator), isthmusd (what computes), isthmus-coordinator.
# The programs are installed where they are made, each with its component; here stands all else.
include(GNUInstallDirs)
if(NOT TARGET isthmus)
  return()  # without gRPC there is nothing to run
endif()

# ---- Manual pages and completions, made by the programs themselves ----
set(made ${CMAKE_BINARY_DIR}/install)
file(MAKE_DIRECTORY ${made}/man1 ${made}/man5)
set(pages)
# isthmus_page(FILE PROGRAM ARGUMENT...): the output of a program as a file.
function(isthmus_page file program)
  add_custom_command(OUTPUT ${made}/${file}
    COMMAND ${program} ${ARGN} > ${made}/${file}.part
    COMMAND ${CMAKE_COMMAND} -E rename ${made}/${file}.part ${made}/${file}
    DEPENDS ${program} VERBATIM)
  set(pages ${pages} ${made}/${file} PARENT_SCOPE)
endfunction()
isthmus_page(man1/isthmus.1 isthmus man)
isthmus_page(man5/isthmus-job.5 isthmus man job)
foreach(shell bash zsh fish)
  isthmus_page(completion.${shell} isthmus completion ${shell})
endforeach()
# The other programs' pages hold what --help prints.
foreach(program isthmusd isthmus-coordinator isthmus-generate isthmus-multilevel isthmus-study isthmus-wan)
  if(TARGET ${program})
    set(help --help)
    if(program STREQUAL isthmus-multilevel)
      set(help --help-all)  # its commands have the options
    endif()
    add_custom_command(OUTPUT ${made}/man1/${program}.1
      COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${program}> -DHELP=${help} -DNAME=${program} -DVERSION=${PROJECT_VERSION}
        -DOUT=${made}/man1/${program}.1 -P ${PROJECT_SOURCE_DIR}/cmake/ManOfHelp.cmake
      DEPENDS ${program} ${PROJECT_SOURCE_DIR}/cmake/ManOfHelp.cmake VERBATIM)
    list(APPEND pages ${made}/man1/${program}.1)
  endif()
endforeach()
# Sanitized programs need an environment of their own to run, and nobody installs them.
if(ISTHMUS_SANITIZE)
  add_custom_target(isthmus_pages DEPENDS ${pages})
else()
  add_custom_target(isthmus_pages ALL DEPENDS ${pages})
  add_dependencies(isthmus_programs isthmus_pages)
endif()

install(FILES ${made}/man1/isthmus.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT cli)
install(FILES ${made}/man5/isthmus-job.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5 COMPONENT cli)
install(FILES ${made}/completion.bash DESTINATION share/bash-completion/completions RENAME isthmus COMPONENT cli)
foreach(folder site-functions vendor-completions)  # where others look, where Debian looks
  install(FILES ${made}/completion.zsh DESTINATION share/zsh/${folder} RENAME _isthmus COMPONENT cli)
endforeach()
install(FILES ${made}/completion.fish DESTINATION share/fish/vendor_completions.d RENAME isthmus.fish COMPONENT cli)
foreach(pair isthmus-multilevel:cli isthmus-wan:cli isthmusd:daemon isthmus-generate:daemon isthmus-study:daemon isthmus-coordinator:coordinator)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 program)
  list(GET pair 1 component)
  if(TARGET ${program})
    install(FILES ${made}/man1/${program}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component})
  endif()
endforeach()

# ---- Units, documents, what a host needs beside the programs ----
set(deploy ${PROJECT_SOURCE_DIR}/deploy)
install(FILES ${deploy}/systemd/isthmusd.service DESTINATION lib/systemd/system COMPONENT daemon)
install(FILES ${deploy}/systemd/isthmus-coordinator.service DESTINATION lib/systemd/system COMPONENT coordinator)
install(FILES ${deploy}/systemd/isthmusd.default DESTINATION share/isthmus COMPONENT daemon)
install(PROGRAMS ${deploy}/fetch-data.sh DESTINATION share/isthmus COMPONENT daemon)
install(FILES ${deploy}/lib.sh DESTINATION share/isthmus COMPONENT daemon)
install(PROGRAMS ${deploy}/tokenize.py ${deploy}/tensorboard.py DESTINATION share/isthmus COMPONENT cli)
install(DIRECTORY ${deploy}/jobs DESTINATION share/isthmus COMPONENT cli)
install(DIRECTORY ${deploy}/prometheus ${deploy}/grafana DESTINATION share/isthmus COMPONENT coordinator)
foreach(pair isthmus:cli isthmusd:daemon isthmus-coordinator:coordinator)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 package)
  list(GET pair 1 component)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/${package} RENAME copyright COMPONENT ${component})
endforeach()
# All pages, in the folders that their links name.
file(GLOB_RECURSE pages RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
  compress/*.md coordinator/*.md coordinator/*.svg daemon/*.md deploy/*.md proto/*.md tests/*.md worker/*.md worker/*.svg)
foreach(page README.md LICENSE ${pages})
  get_filename_component(folder ${page} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${page} DESTINATION share/doc/isthmus/${folder} COMPONENT cli)
endforeach()

# ---- Debian packages: deploy/package.sh, or `cpack` in the build folder ----
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME isthmus)
set(CPACK_PACKAGE_VENDOR Isthmus)
set(CPACK_PACKAGE_CONTACT "Isthmus maintainers <maintainers@isthmus.invalid>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL cli daemon coordinator)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # the libraries, as dpkg-shlibdeps finds them
set(CPACK_DEBIAN_CLI_PACKAGE_NAME isthmus)
set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME isthmusd)
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_NAME isthmus-coordinator)
set(CPACK_COMPONENT_CLI_DESCRIPTION "trains one neural network on hosts that a slow network joins: command line
 The program isthmus with isthmus-multilevel, the emulator of wide-area networks, completions and manual pages.")
set(CPACK_COMPONENT_DAEMON_DESCRIPTION "trains one neural network on hosts that a slow network joins: daemon
 The program of each host that computes, with isthmus-generate and isthmus-study.")
set(CPACK_COMPONENT_COORDINATOR_DESCRIPTION "trains one neural network on hosts that a slow network joins: coordinator
 The program that plans, watches and keeps checkpoints, with rules and dashboards for Prometheus and Grafana.")
set(CPACK_DEBIAN_DAEMON_PACKAGE_DEPENDS "libopenblas0-pthread | libopenblas0")  # the reference BLAS is 40 times slower
set(CPACK_DEBIAN_CLI_PACKAGE_SUGGESTS "isthmusd, isthmus-coordinator, python3")
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_RECOMMENDS "isthmus")  # phases of jobs start isthmus-multilevel
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_SUGGESTS "prometheus")
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA
  "${deploy}/debian/daemon/postinst;${deploy}/debian/daemon/prerm;${deploy}/debian/daemon/postrm")
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_CONTROL_EXTRA
  "${deploy}/debian/coordinator/postinst;${deploy}/debian/coordinator/prerm;${deploy}/debian/coordinator/postrm")
include(CPack)
