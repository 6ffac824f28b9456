// Builds an answer from a JSON value. The function is pure.
#pragma once

#include <boost/json.hpp>

#include "server/http/http.h"

namespace hadal::server {

inline HttpResponse json_text(const boost::json::value& value) {
  HttpResponse response;
  response.body = boost::json::serialize(value);
  return response;
}

}  // namespace hadal::server
