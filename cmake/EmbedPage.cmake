# As a script (-D PAGE_DIR -D LIBRARIES -D OUTPUT) this writes a C++ file with the bytes of every file of the chat page,
# its path, type and ETag, which src/server/page.h declares. index.html is served at /, the others at /page/<name>, and
# the LIBRARIES, a list of NAME=FILE, at /page/lib/NAME.
set(types_html "text/html; charset=utf-8")
set(types_css "text/css; charset=utf-8")
set(types_js "text/javascript; charset=utf-8")
set(types_svg "image/svg+xml")
set(types_woff2 "font/woff2")

set(bytes "")
set(symbols "")
set(rows "")
set(index 0)
function(embed path file)
  string(REGEX REPLACE ".*\\." "" extension ${file})
  if(NOT DEFINED types_${extension})
    message(FATAL_ERROR "no content type is known for ${file}")
  endif()
  file(SIZE ${file} size)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 20 hash)
  # The assembler reads the bytes itself, because a compiler needs long for a million numbers.
  set(symbol hadal_page_file_${index})
  string(APPEND bytes "    \".globl ${symbol}\\n.hidden ${symbol}\\n${symbol}:\\n.incbin \\\"${file}\\\"\\n.byte 0\\n\"\n")
  string(APPEND symbols "extern const char ${symbol}[];\n")
  string(APPEND rows "    {\"${path}\", \"${types_${extension}}\", {${symbol}, ${size}}, \"\\\"${hash}\\\"\"},\n")
  math(EXPR index "${index} + 1")
  foreach(variable bytes symbols rows index)
    set(${variable} "${${variable}}" PARENT_SCOPE)
  endforeach()
endfunction()

file(GLOB names RELATIVE ${PAGE_DIR} ${PAGE_DIR}/*)
list(SORT names)
foreach(name ${names})
  if(name STREQUAL "index.html")
    embed("/" ${PAGE_DIR}/${name})
  else()
    embed("/page/${name}" ${PAGE_DIR}/${name})
  endif()
endforeach()
foreach(library ${LIBRARIES})
  string(REGEX MATCH "^([^=]+)=(.*)$" matched ${library})
  embed("/page/lib/${CMAKE_MATCH_1}" ${CMAKE_MATCH_2})
endforeach()

file(WRITE ${OUTPUT} "// Written by cmake/EmbedPage.cmake from src/server/page/ and the page's libraries.
#include \"server/page.h\"

asm(\".pushsection .rodata\\n\"
${bytes}    \".popsection\\n\");

extern \"C\" {
${symbols}}

namespace hadal::server {
namespace {
const PageFile kFiles[] = {
${rows}};
}  // namespace

std::span<const PageFile> page_files() { return kFiles; }

}  // namespace hadal::server
")
