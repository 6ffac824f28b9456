# As a script (-D PAGE_DIR -D OUTPUT) this writes a C++ file with the bytes of every file of the chat page, its path,
# type and ETag, which src/server/page.h declares. index.html is served at /, the others at /page/<name>.
file(GLOB names RELATIVE ${PAGE_DIR} ${PAGE_DIR}/*)
list(SORT names)

set(types_html "text/html; charset=utf-8")
set(types_css "text/css; charset=utf-8")
set(types_js "text/javascript; charset=utf-8")
set(types_svg "image/svg+xml")

set(arrays "")
set(rows "")
set(index 0)
foreach(name ${names})
  string(REGEX REPLACE ".*\\." "" extension ${name})
  if(NOT DEFINED types_${extension})
    message(FATAL_ERROR "no content type is known for ${PAGE_DIR}/${name}")
  endif()
  if(name STREQUAL "index.html")
    set(path "/")
  else()
    set(path "/page/${name}")
  endif()
  file(READ ${PAGE_DIR}/${name} bytes HEX)
  file(SHA256 ${PAGE_DIR}/${name} hash)
  string(SUBSTRING ${hash} 0 20 hash)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND arrays "constexpr char kFile${index}[] = {${bytes}};\n")
  string(APPEND rows "    {\"${path}\", \"${types_${extension}}\", {kFile${index}, sizeof kFile${index}}, "
                     "\"\\\"${hash}\\\"\"},\n")
  math(EXPR index "${index} + 1")
endforeach()

file(WRITE ${OUTPUT} "// Written by cmake/EmbedPage.cmake from src/server/page/.
#include \"server/page.h\"

namespace hadal::server {
namespace {
${arrays}constexpr PageFile kFiles[] = {
${rows}};
}  // namespace

std::span<const PageFile> page_files() { return kFiles; }

}  // namespace hadal::server
")
