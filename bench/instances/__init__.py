"""One engine on all cores against several that share them: tokens per second by sessions.

One replica each, alternating on the same chats: greedy, drafts off, replies of full length, so
both compute the same tokens. Their replies have to be the same.
"""
