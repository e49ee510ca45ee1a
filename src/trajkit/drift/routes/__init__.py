"""The ways recorded ids are checked; each takes trajectories and tells what it found in them.

ids.py      decode each action and encode it again
chain.py    does each prompt start with the prompt + action it grows from
join.py     decode each whole sequence and encode it as one text
render.py   put the messages through the chat template
track.py    recorded ids beside rendered text: where both are at the same border of a turn
pair.py     hold one recording against another
record.py   hold what else a record says of an action against its ids (route `self`)
"""
