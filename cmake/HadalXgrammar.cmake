# Grammar-constrained decoding uses xgrammar's C++ core, which scripts/fetch_xgrammar (called by
# scripts/setup) brings to build/third_party/. Without it the build goes on, and requests with a grammar are
# answered with an error.
#   hadal_xgrammar               the library, where it is there
#   HADAL_GRAMMAR_LEAVES_OUT     which of src/text/grammar/grammar_{xgrammar,stub}.cpp is not compiled, as a regex
#   HADAL_GRAMMAR_LIBRARIES      what the other one links
file(STRINGS ${PROJECT_SOURCE_DIR}/scripts/fetch_xgrammar version REGEX "^VERSION = ")
string(REGEX REPLACE ".*\"(.*)\".*" "\\1" version "${version}")
set(HADAL_XGRAMMAR_DIR ${PROJECT_SOURCE_DIR}/build/third_party/xgrammar-${version})

# Every build evaluates this glob again, so that sources that are fetched later are found.
file(GLOB found CONFIGURE_DEPENDS ${HADAL_XGRAMMAR_DIR}/include/xgrammar/compiler.h)
if(found)
  add_subdirectory(${PROJECT_SOURCE_DIR}/cmake/xgrammar ${PROJECT_BINARY_DIR}/cmake/xgrammar)
  set(HADAL_GRAMMAR_LEAVES_OUT "/grammar_stub\\.cpp$")
  set(HADAL_GRAMMAR_LIBRARIES hadal_xgrammar)
else()
  message(STATUS "xgrammar is not in build/third_party (scripts/fetch_xgrammar brings it): building without grammars")
  set(HADAL_GRAMMAR_LEAVES_OUT "/grammar_xgrammar\\.cpp$")
  set(HADAL_GRAMMAR_LIBRARIES "")
endif()
