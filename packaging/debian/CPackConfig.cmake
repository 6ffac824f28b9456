# Makes the Debian package from the files that scripts/package has laid out:
#   cpack --config packaging/debian/CPackConfig.cmake -D CPACK_PACKAGE_VERSION=X -D "CPACK_INSTALLED_DIRECTORIES=DIR;/" -B OUT
# DIR has the files as they are installed, from / on. The package includes all shared libraries but glibc's,
# so it depends on little and fits every Debian and Ubuntu whose glibc is new enough.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME hadal)
set(CPACK_PACKAGE_FILE_NAME hadal)  # of a folder; the package is named as Debian names it
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_PACKAGE_CONTACT "Hadal <hadal@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "serving engine for DeepSeek models")
set(CPACK_PACKAGE_DESCRIPTION "Hadal reads a Hugging Face checkpoint of a DeepSeek model as it is and serves it over the
APIs of OpenAI and SGLang. The package has a small model, a systemd unit that is not started by itself, manual pages and
completions for shells.")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.36), adduser")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_LIST_DIR}/conffiles ${CMAKE_CURRENT_LIST_DIR}/postinst
    ${CMAKE_CURRENT_LIST_DIR}/prerm ${CMAKE_CURRENT_LIST_DIR}/postrm)
