# Finds the JavaScript libraries of the chat page, which are packages of the system (scripts/setup installs
# them), and sets HADAL_PAGE_LIBRARIES to a list of "NAME=FILE". The page loads FILE from /page/lib/NAME.
set(HADAL_PAGE_LIBRARIES "")

function(hadal_page_library name package)
  string(MAKE_C_IDENTIFIER "HADAL_PAGE_${name}" variable)
  find_file(${variable} NAMES ${ARGN} PATHS /usr/share/javascript /usr/share/nodejs /usr/share/fonts/truetype
            NO_DEFAULT_PATH)
  mark_as_advanced(${variable})
  if(NOT ${variable})
    message(FATAL_ERROR "the chat page needs ${ARGN}, which the package ${package} has; scripts/setup installs it")
  endif()
  set(HADAL_PAGE_LIBRARIES ${HADAL_PAGE_LIBRARIES} "${name}=${${variable}}" PARENT_SCOPE)
endfunction()

hadal_page_library(marked.js libjs-marked marked/marked.min.js)
hadal_page_library(purify.js node-dompurify dompurify/dist/purify.min.js)
hadal_page_library(highlight.js libjs-highlight.js highlight.js/highlight.min.js)
hadal_page_library(katex.js libjs-katex katex/katex.min.js)
hadal_page_library(katex.css libjs-katex katex/katex.min.css)
# The style sheet names three formats of each font, and every browser uses the first, which is woff2.
foreach(font AMS-Regular Caligraphic-Bold Caligraphic-Regular Fraktur-Bold Fraktur-Regular Main-Bold Main-BoldItalic
             Main-Italic Main-Regular Math-BoldItalic Math-Italic SansSerif-Bold SansSerif-Italic SansSerif-Regular
             Script-Regular Size1-Regular Size2-Regular Size3-Regular Size4-Regular Typewriter-Regular)
  hadal_page_library(fonts/KaTeX_${font}.woff2 fonts-katex katex/KaTeX_${font}.woff2)
endforeach()
