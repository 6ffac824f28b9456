# When the portable preset is installed, this copies the shared libraries that the binary needs, except
# glibc's, into lib/, together with the notices of all third-party code in the tarball. If a notice is
# missing, the install fails.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${HADAL_BINARY} PRE_EXCLUDE_REGEXES ${HADAL_GLIBC}
     RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing)
if(missing)
  message(FATAL_ERROR "shared libraries not found: ${missing}")
endif()
foreach(library IN LISTS libraries)
  file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${HADAL_LIBDIR} TYPE SHARED_LIBRARY
       FOLLOW_SYMLINK_CHAIN FILES ${library})
endforeach()

execute_process(COMMAND ${HADAL_NOTICES} --target hadal --out $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${HADAL_DOCDIR}/third-party
                        --bundled ${libraries}
                COMMAND_ERROR_IS_FATAL ANY)
