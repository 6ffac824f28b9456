// Finds the word that a misspelled name was probably meant to be, for error messages.
#pragma once

#include <span>
#include <string_view>

namespace hadal {

// Counts the changes (insert, delete, replace, swap neighbours) between two words, in bytes.
int edit_distance(std::string_view a, std::string_view b);

// Returns the word of `candidates` nearest to `word`, the first among equals. Returns an empty view when none
// is near enough to be meant (more than half of the word would change, and at least two changes are needed),
// and for words of more than 100 bytes, which are not misspelled names.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace hadal
