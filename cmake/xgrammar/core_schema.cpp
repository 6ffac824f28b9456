// This translation unit joins sources of xgrammar: JSON schemas and structural tags.
#include "cpp/json_schema_converter.cc"
#include "cpp/structural_tag.cc"
