# cmake -DINPUT=page.html -DOUTPUT=page.cpp -DHEADER=room/page.h -DFUNCTION=page -P embed.cmake
# Writes a function of namespace tidemill that returns the file as a string_view.
file(READ ${INPUT} text)
set(source "#include \"${HEADER}\"\n\nnamespace tidemill {\n\n")
string(APPEND source "std::string_view ${FUNCTION}() {\n  return R\"embedded(${text})embedded\";\n}\n\n")
string(APPEND source "}  // namespace tidemill\n")
file(WRITE ${OUTPUT} "${source}")
