# `cmake --install` and a relocatable tarball (`cpack`) have bin/hadal, lib/ (portable only),
# share/hadal/models/…, share/hadal/kernel-configs/…, manual pages and completions for shells. The binary
# finds its data relative to its own path (base/install_paths.h), so the tree may be moved.
include(GNUInstallDirs)
install(TARGETS hadal RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/hadal-tiny DESTINATION ${CMAKE_INSTALL_DATADIR}/hadal/models OPTIONAL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/share/kernel-configs DESTINATION ${CMAKE_INSTALL_DATADIR}/hadal)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(CODE "set(HADAL_BINARY [[$<TARGET_FILE:hadal>]])
              set(HADAL_MANDIR [[${CMAKE_INSTALL_MANDIR}]])
              set(HADAL_DATADIR [[${CMAKE_INSTALL_DATADIR}]])")
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/InstallDocs.cmake)

if(HADAL_PORTABLE)
  # Every shared library except glibc's own goes into lib/. glibc must be that of the host, and not older than
  # the build machine's. RPATH is used and not RUNPATH, because RPATH also applies to the libraries that the
  # bundled libraries need.
  set_target_properties(hadal PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  target_link_options(hadal PRIVATE -Wl,--disable-new-dtags)
  set(glibc "^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|mvec|anl))\\.so.*")
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  set(notices "${Python3_EXECUTABLE};${PROJECT_SOURCE_DIR}/scripts/notices;--build-dir;${PROJECT_BINARY_DIR}")
  install(CODE "set(HADAL_GLIBC [[${glibc}]])
                set(HADAL_LIBDIR [[${CMAKE_INSTALL_LIBDIR}]])
                set(HADAL_DOCDIR [[${CMAKE_INSTALL_DOCDIR}]])
                set(HADAL_NOTICES [[${notices}]])
                set(HADAL_BINARY [[$<TARGET_FILE:hadal>]])")
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/BundleLibraries.cmake)
endif()

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_FILE_NAME hadal-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
include(CPack)
