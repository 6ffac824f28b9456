// Serves the chat page at `/` and the files it loads, which are compiled into the binary: plain text from
// src/server/page/, and libraries of the system's packages (cmake/PageLibraries.cmake) at /page/lib/.
#pragma once

#include <span>
#include <string_view>

#include "server/router.h"

namespace hadal::server {

// PageFile is one file of the page in the form that is served. The views live as long as the program.
struct PageFile {
  std::string_view path;          // "/", "/page/app.js"
  std::string_view content_type;  // "text/html; charset=utf-8"
  std::string_view content;
  std::string_view etag;  // strong, quoted: a hash of the content
};

std::span<const PageFile> page_files();

// Adds a GET route for every file. No key is needed: the page asks for one when the server answers 401.
void add_page_routes(Router& router);

}  // namespace hadal::server
