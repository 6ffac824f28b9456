# At install time of the portable preset: copies the shared libraries that the binary needs, glibc's excepted,
# into lib/, with the notices of everything third-party that travels in the tarball.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${HADAL_BINARY} PRE_EXCLUDE_REGEXES ${HADAL_GLIBC}
     RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing)
if(missing)
  message(FATAL_ERROR "shared libraries not found: ${missing}")
endif()
foreach(library IN LISTS libraries)
  file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${HADAL_LIBDIR} TYPE SHARED_LIBRARY
       FOLLOW_SYMLINK_CHAIN FILES ${library})
endforeach()

# Linked statically or header-only (the first five), or bundled above.
foreach(package libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libpcre2-dev libhwy-dev libstdc++6)
  if(EXISTS /usr/share/doc/${package}/copyright)
    file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${HADAL_DOCDIR}/third-party TYPE FILE
         RENAME ${package}.txt FILES /usr/share/doc/${package}/copyright)
  endif()
endforeach()
if(HADAL_XGRAMMAR_DIR)
  foreach(notice LICENSE NOTICE 3rdparty/dlpack/LICENSE 3rdparty/picojson/picojson.h)
    string(REPLACE "/" "-" name ${notice})
    file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${HADAL_DOCDIR}/third-party TYPE FILE
         RENAME xgrammar-${name}.txt FILES ${HADAL_XGRAMMAR_DIR}/${notice})
  endforeach()
endif()
