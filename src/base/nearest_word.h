// What a misspelled name was probably meant to be, for error messages.
#pragma once

#include <span>
#include <string_view>

namespace hadal {

// Changes (insert, delete, replace, swap neighbours) between two words, bytes counted.
int edit_distance(std::string_view a, std::string_view b);

// The word of `candidates` nearest to `word`, the first of equally near ones; empty when none is near enough
// to be meant (more than half of the word changed, at least two changes) and for words of more than 100
// bytes, which nobody meant.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace hadal
