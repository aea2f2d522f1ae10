// Precompiled headers need a source.
