// What every page of HTML has: its head, how it looks, and the script that sorts and filters its tables. Nothing in
// them depends on a result.
#pragma once

#include <string_view>

namespace shardproof {

// Takes `title` and `style`. The policy lets a reader's browser load nothing from anywhere.
inline constexpr std::string_view kHtmlHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline';
  script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
)";

// Every colour of text has a contrast of at least 4.5 to what is behind it.
extern const std::string_view kHtmlStyle;
extern const std::string_view kHtmlScript;

}  // namespace shardproof
