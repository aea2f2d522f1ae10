#pragma once
// Empty: see rendezvous/store.h.
